//! Aligned columns.

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// Rows of cells under a head; widths follow the content.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table { columns: columns.iter().map(|(n, a)| ((*n).to_owned(), *a)).collect(), rows: Vec::new() }
    }

    /// Missing cells are empty, cells beyond the columns are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().take(self.columns.len()).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One line per row, each with `indent` blanks before it.
    pub fn render(&self, indent: usize) -> String {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let width = |i: usize| {
            let cells = self.rows.iter().chain([&head]).map(|row| row[i].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        for row in [&head].into_iter().chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Names and values, aligned.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: columns line up. Method: a small table, compared as text.
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        table.row(["a".into(), "10000".into()]);
        table.row(["longer".into()]);
        assert_eq!(table.render(1), " name        n\n a       10000\n longer\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2\n");
    }
}
