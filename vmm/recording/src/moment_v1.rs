//! The first version of a stored [`Moment`]. The recording's manifest names the unit of the count.

use serde::{Deserialize, Serialize};

use machine::position::{Count, Moment};

/// The stored form of a [`Moment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentV1 {
    count: u64,
    time_ns: u64,
}

impl<C: Count> From<Moment<C>> for MomentV1 {
    fn from(moment: Moment<C>) -> MomentV1 {
        let Moment { count, time_ns } = moment;
        MomentV1 { count: count.number(), time_ns }
    }
}

impl<C: Count> From<MomentV1> for Moment<C> {
    fn from(stored: MomentV1) -> Moment<C> {
        let MomentV1 { count, time_ns } = stored;
        Moment { count: C::new(count), time_ns }
    }
}
