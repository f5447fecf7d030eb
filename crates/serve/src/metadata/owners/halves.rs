//! Slots that are to go together and do not: one that cannot go holds up no others. No lock, no clock.

/// Refusals after which nothing is halved any more: twice as many as it takes to find one of all slots.
const REFUSALS_MAX: usize = 26;

/// Has them go, together if they do, else in halves, and halves of those. Who refuses says whether less may go. The first refusal is what it ends with.
pub(super) fn all_that_goes<E>(
    slots: &[u16],
    mut go: impl FnMut(&[u16]) -> Result<(), (E, bool)>,
) -> Result<(), E> {
    let (mut left, mut refusals, mut failed) = (vec![slots], 0, None);
    while let Some(some) = left.pop() {
        let Err((error, less_may_go)) = go(some) else { continue };
        failed = failed.or(Some(error));
        refusals += 1;
        if less_may_go && some.len() > 1 && refusals < REFUSALS_MAX {
            let (first, second) = some.split_at(some.len() / 2);
            left.extend([second, first]);
        }
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that went, after how many attempts, and what it ended with.
    fn gone(slots: &[u16], stay: &[u16], less_may_go: bool) -> (Vec<u16>, usize, Result<(), u16>) {
        let (mut gone, mut attempts) = (Vec::new(), 0);
        let end = all_that_goes(slots, |some| {
            attempts += 1;
            match some.iter().find(|slot| stay.contains(slot)) {
                Some(stays) => Err((*stays, less_may_go)),
                None => {
                    gone.extend(some);
                    Ok(())
                }
            }
        });
        gone.sort_unstable();
        (gone, attempts, end)
    }

    /// Goal: what can go goes, whatever stays, and attempts have a bound. Method: slots of which some stay, wherever.
    #[test]
    fn what_stays_holds_up_no_others() {
        let all: Vec<u16> = (0..4096).collect();
        assert_eq!(gone(&all, &[], true), (all.clone(), 1, Ok(())));
        assert_eq!(gone(&[], &[], true), (vec![], 1, Ok(())));
        for stays in [0, 1, 1365, 2047, 2048, 4095] {
            let (went, attempts, end) = gone(&all, &[stays], true);
            assert!(went.iter().eq(all.iter().filter(|slot| **slot != stays)) && end == Err(stays));
            assert_eq!(attempts, 25, "two for each bit");
        }
        let (went, attempts, end) = gone(&all, &[7, 3000], true);
        assert!(went.len() == 4094 && end == Err(7) && attempts <= 50);
        assert_eq!(gone(&all, &all, true).0, []);
        assert!(gone(&all, &all, true).1 <= 2 * REFUSALS_MAX);
        assert_eq!(gone(&all, &[9], false), (vec![], 1, Err(9)), "nobody is there who could take some");
    }
}
