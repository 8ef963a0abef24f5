//! Injects disk faults below the server, with a preloaded library (`shim.c`) that is compiled at the start of the proof
//! and controlled through a shared file while the server runs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::posthaste::Launch;
use crate::prove::CannotRun;

/// The offsets of the fields in the shared file; `struct orders` in `shim.c`.
const MODE_AT: u64 = 0;
const FREE_AT: u64 = 8;
const REFUSED_AT: u64 = 16;
const ORDERS_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShimmedDisk {
    /// Without faults.
    Well,
    /// Full; bytes that the server frees can be used again.
    Full,
    /// Full; bytes that the server frees cannot be used again, as if another process took them.
    Crowded,
    /// Every write fails.
    WritesFail,
    SyncsFail,
}

/// The compiled library and its shared file.
#[derive(Debug)]
pub(super) struct Shim {
    library: PathBuf,
    orders: PathBuf,
    file: File,
}

impl Shim {
    /// Compiles the library into this folder.
    pub(super) fn make(folder: &Path) -> Result<Self, CannotRun> {
        let [source, library, orders] = ["shim.c", "shim.so", "orders"].map(|name| folder.join(name));
        fs::write(&source, include_str!("shim.c"))?;
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
        match compiled {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(CannotRun(format!("cc cannot compile the failing disk: {status}"))),
            Err(error) => return Err(CannotRun(format!("a C compiler is needed for the failing disk: {error}"))),
        }
        fs::write(&orders, [0; ORDERS_BYTES])?;
        let file = OpenOptions::new().read(true).write(true).open(&orders)?;
        Ok(Self { library, orders, file })
    }

    /// Preloads the library into a server.
    pub(super) fn below(&self, launch: Launch) -> Launch {
        let data = launch.data();
        launch.with("LD_PRELOAD", &self.library).with("DISK_ORDERS", &self.orders).with("DISK_FOLDER", data)
    }

    /// Sets the state of the disk, with effect at once.
    pub(super) fn is(&self, disk: ShimmedDisk) -> io::Result<()> {
        let (mode, free): (i64, i64) = match disk {
            ShimmedDisk::Well => (0, 0),
            ShimmedDisk::Full => (1, 0),
            ShimmedDisk::Crowded => (1, i64::MIN / 2),
            ShimmedDisk::WritesFail => (2, 0),
            ShimmedDisk::SyncsFail => (3, 0),
        };
        self.file.write_all_at(&free.to_ne_bytes(), FREE_AT)?;
        self.file.write_all_at(&mode.to_ne_bytes(), MODE_AT)
    }

    /// How many calls have failed so far.
    pub(super) fn refused(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, REFUSED_AT)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
