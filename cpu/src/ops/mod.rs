//! Instruction handlers by family. Each family has a `lower` that turns a decoded instruction into an
//! [`Op`](crate::op::Op), or declines.

pub(crate) mod integer;
pub(crate) mod simd;
pub(crate) mod system;
pub(crate) mod width;
pub(crate) mod x87;
