//! Makes a failing list of operations shorter by leaving parts out and running it again.

use std::time::Instant;

/// Removes chunks, halving their size, while `fails` still holds; ends at the deadline with the best so far.
pub fn shrink<T: Clone>(mut steps: Vec<T>, deadline: Instant, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut chunk = (steps.len() / 2).max(1);
    loop {
        let mut start = 0;
        let mut removed = false;
        while start < steps.len() {
            if Instant::now() > deadline {
                return steps;
            }
            let end = (start + chunk).min(steps.len());
            let without: Vec<T> = [&steps[..start], &steps[end..]].concat();
            if !without.is_empty() && fails(&without) {
                steps = without;
                removed = true;
            } else {
                start = end;
            }
        }
        if chunk > 1 {
            chunk /= 2;
        } else if !removed {
            return steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_left() {
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let steps: Vec<u32> = (0..200).collect();
        let short = shrink(steps, deadline, |s| s.contains(&17) && s.contains(&150));
        assert_eq!(short, [17, 150]);
    }
}
