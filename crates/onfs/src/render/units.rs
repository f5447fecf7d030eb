//! Numbers with their units, for people.

use types::ByteSize;

/// `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    format!("{:#}", ByteSize(n))
}

/// `1.5 GiB/s`, or `-` for nothing.
pub fn rate(bytes_per_second: u64) -> String {
    if bytes_per_second == 0 { "-".into() } else { format!("{}/s", bytes(bytes_per_second)) }
}

/// Whole per cent of `part` in `whole`; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part) * 100 / u128::from(whole)) as u64 }
}

/// A bar of `width` cells with the per cent behind it.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let percent = percent(part, whole);
    let filled = (percent.min(100) as usize * width).div_ceil(100);
    let text = if percent > 999 { ">999".to_owned() } else { percent.to_string() };
    format!("[{}{}] {text:>3}%", "#".repeat(filled), ".".repeat(width - filled))
}

/// The two largest units: `3d 4h`, `5min 2s`, `250ms`.
pub fn span(ms: u64) -> String {
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let seconds = ms / 1000;
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let shown = parts[first..].iter().take(2).filter(|(n, _)| *n > 0);
    shown.map(|(n, unit)| format!("{n}{unit}")).collect::<Vec<_>>().join(" ")
}

/// A count with blanks between thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 file`, `2 000 files`.
pub fn files(n: u64) -> String {
    format!("{} file{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    //! Goal: numbers read well at their edges. Method: tables.
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(rate(0), "-");
        assert_eq!(percent(1, 0), 0);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
        assert_eq!(bar(1, 2, 4), "[##..]  50%");
        assert_eq!(bar(3, 2, 4), "[####] 150%");
        assert_eq!(bar(1 << 30, 5, 4), "[####] >999%");
        assert_eq!(span(250), "250ms");
        assert_eq!(span(302_000), "5min 2s");
        assert_eq!(span(90_000_000), "1d 1h");
        assert_eq!(span(3_600_000), "1h");
        assert_eq!(count(1_234_567), "1 234 567");
    }
}
