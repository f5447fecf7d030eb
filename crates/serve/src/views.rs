//! Views of objects on two data servers, as messages have them and as [`cluster::replica`] does.

use cluster::{
    NodeId,
    replica::{Member, Second, View},
};
use proto::copies as said;

pub(crate) fn member(of: said::Member) -> Member {
    Member { node: NodeId(of.node), life: of.life }
}

pub(crate) fn said_member(of: Member) -> said::Member {
    said::Member { node: of.node.0, life: of.life }
}

pub(crate) fn view(of: &said::View) -> View {
    let second = of.second.map(|second| Second {
        member: member(second.member),
        since: second.since,
        counts: second.counts,
        kept: second.kept,
    });
    View { number: of.number, primary: member(of.primary), since: of.since, second }
}

pub(crate) fn said_view(of: &View) -> said::View {
    let second = of.second.map(|second| said::Second {
        member: said_member(second.member),
        since: second.since,
        counts: second.counts,
        kept: second.kept,
    });
    said::View { number: of.number, primary: said_member(of.primary), since: of.since, second }
}
