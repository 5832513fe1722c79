//! Generated code of the internal gRPC services; the `.proto` files beside this crate say what they mean.

#![allow(clippy::all)]

pub mod control {
    tonic::include_proto!("spool.control.v1");
}
pub mod replication {
    tonic::include_proto!("spool.replication.v1");
}
pub mod ops {
    tonic::include_proto!("spool.ops.v1");
}

/// For gRPC reflection.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");
