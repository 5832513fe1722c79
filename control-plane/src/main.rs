mod claims;
mod elections;
mod inspect;
mod ops;
mod placement;
mod reconcile;

fn main() {}
