fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "spool/control/v1/control.proto",
        "spool/replication/v1/replication.proto",
        "spool/ops/v1/ops.proto",
    ];
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    tonic_prost_build::configure()
        .bytes(".")
        .file_descriptor_set_path(out.join("descriptors.bin"))
        .compile_protos(&files, &["."])?;
    Ok(())
}
