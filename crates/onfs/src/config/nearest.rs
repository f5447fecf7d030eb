//! The known word that an unknown one was probably meant to be.

/// The candidate within a third of the word's length (at least two edits), if any.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|c| (distance(word, c), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    //! Goal: typing mistakes find their word and nonsense finds none. Method: a table.
    use super::*;

    #[test]
    fn mistakes_find_their_word() {
        let known = ["size", "dir", "write_behind", "memory_budget"];
        assert_eq!(nearest("sise", known), Some("size"));
        assert_eq!(nearest("writebehind", known), Some("write_behind"));
        assert_eq!(nearest("memory-budget", known), Some("memory_budget"));
        assert_eq!(nearest("elephants", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
