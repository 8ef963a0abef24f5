//! The layer of faults below the server: compiled when a proof asks for it, and told what to do while it is
//! in use. What it does is in `shim.c`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::posthaste::Launch;
use crate::prove::CannotRun;

/// Where each order stands in their file.
const MODE_AT: u64 = 0;
const FREE_AT: u64 = 8;
const REFUSED_AT: u64 = 16;
const ORDERS_BYTES: usize = 24;

/// How the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// As it should be.
    Well,
    /// Without a free byte, but for what is given up.
    Full,
    /// The same, and what is given up is taken by somebody else.
    Crowded,
    /// Every write fails.
    WritesFail,
    /// Every sync fails.
    SyncsFail,
}

/// The shim and its orders.
#[derive(Debug)]
pub(super) struct Shim {
    library: PathBuf,
    orders: PathBuf,
    file: File,
}

impl Shim {
    /// Compiles it into this folder.
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

    /// Puts it below a server.
    pub(super) fn below(&self, launch: Launch) -> Launch {
        let data = launch.data();
        launch.with("LD_PRELOAD", &self.library).with("DISK_ORDERS", &self.orders).with("DISK_FOLDER", data)
    }

    /// From now on the disk is like this.
    pub(super) fn is(&self, disk: Disk) -> io::Result<()> {
        let (mode, free): (i64, i64) = match disk {
            Disk::Well => (0, 0),
            Disk::Full => (1, 0),
            Disk::Crowded => (1, i64::MIN / 2),
            Disk::WritesFail => (2, 0),
            Disk::SyncsFail => (3, 0),
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
