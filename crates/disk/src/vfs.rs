//! The SQLite file system (VFS) of this crate: the unix VFS, with a simulated disk ([`crate::disk`]) in between for
//! folders that have one. It is registered as the process's default, so that the store under test needs no change.
//!
//! This is the only `unsafe` code of the workspace. Its soundness depends on SQLite's contract with a VFS: SQLite
//! allocates `szOsFile` zeroed bytes for each file, calls methods only on files that `open` has filled, never two at
//! once on one file, and `close` last.

#![expect(unsafe_code, reason = "SQLite calls a file system through C function pointers")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use rusqlite::ffi;

use crate::disk::{CallFate, DiskPath, FaultKind, OpenFile};

/// An open file on a simulated disk. The unix VFS's own file structure follows it in memory.
#[repr(C)]
struct Opened {
    base: ffi::sqlite3_file,
    handle: *mut OpenFile,
    real: *mut ffi::sqlite3_file,
    _aligned: u64,
}

/// The unix VFS: a pointer that SQLite keeps valid for the life of the process.
struct Unix(*mut ffi::sqlite3_vfs);

// SAFETY: the structure behind it is never changed after SQLite has made it, and its functions may
// be called from any thread.
unsafe impl Send for Unix {}
// SAFETY: as above.
unsafe impl Sync for Unix {}

static UNIX: OnceLock<Unix> = OnceLock::new();

/// Registers this VFS as the process's default; later calls do nothing.
pub(crate) fn register() {
    UNIX.get_or_init(|| {
        // SAFETY: finding a VFS by name has no conditions; SQLite initialises itself.
        let unix = unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) };
        assert!(!unix.is_null(), "SQLite was built for unix");
        // SAFETY: not null, and SQLite keeps it for ever. What it points to is plain data.
        let mut ours = unsafe { ptr::read(unix) };
        ours.szOsFile += c_int::try_from(size_of::<Opened>()).expect("a few words");
        ours.zName = c"posthaste-disk".as_ptr();
        ours.pNext = ptr::null_mut();
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        let ours = Box::leak(Box::new(ours));
        // SAFETY: leaked, so it outlives every connection.
        let registered = unsafe { ffi::sqlite3_vfs_register(ours, 1) };
        assert_eq!(registered, ffi::SQLITE_OK, "a VFS can be registered");
        Unix(unix)
    });
}

fn unix() -> *mut ffi::sqlite3_vfs {
    UNIX.get().map_or(ptr::null_mut(), |unix| unix.0)
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // 2: with shared memory, without mapping the file itself.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// The file that a C path names, if it is on a simulated disk.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn place(name: *const c_char) -> Option<DiskPath> {
    if name.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    DiskPath::of(Path::new(OsStr::from_bytes(name.to_bytes())))
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let unix = unix();
    // SAFETY: SQLite keeps the unix VFS valid for the life of the process.
    let real_open = unsafe { (*unix).xOpen }.expect("the unix VFS opens files");
    // SAFETY: SQLite hands in a C string or null.
    let Some(place) = (unsafe { place(name) }) else {
        // SAFETY: the arguments are passed on unchanged; the file has more room than the unix VFS needs.
        return unsafe { real_open(unix, name, file, flags, out_flags) };
    };
    // SAFETY: `file` has `szOsFile` bytes; SQLite calls no method of a file without methods, if this open fails.
    unsafe { (*file).pMethods = ptr::null() };
    let Some(was_there) = place.is_there() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: `Opened` is followed by as many bytes as the unix VFS asked for.
    let real = unsafe { file.cast::<Opened>().add(1) }.cast::<ffi::sqlite3_file>();
    // SAFETY: as above; name and flags are passed on unchanged.
    let opened = unsafe { real_open(unix, name, real, flags, out_flags) };
    if opened == ffi::SQLITE_OK {
        let handle = Box::into_raw(Box::new(place.opened(was_there)));
        let ours = Opened { base: ffi::sqlite3_file { pMethods: &METHODS }, handle, real, _aligned: 0 };
        // SAFETY: `szOsFile` was enlarged by the size of `Opened`.
        unsafe { ptr::write(file.cast::<Opened>(), ours) };
    }
    opened
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    let unix = unix();
    // SAFETY: SQLite keeps the unix VFS valid for the life of the process.
    let real_delete = unsafe { (*unix).xDelete }.expect("the unix VFS deletes files");
    // SAFETY: SQLite hands in a C string.
    let Some(place) = (unsafe { place(name) }) else {
        // SAFETY: the arguments are passed on unchanged.
        return unsafe { real_delete(unix, name, sync_dir) };
    };
    let mut done = ffi::SQLITE_OK;
    // SAFETY: the name is passed on unchanged.
    let fate = place.delete(sync_dir != 0, || done = unsafe { real_delete(unix, name, 0) });
    if fate == CallFate::Dead { ffi::SQLITE_IOERR_DELETE } else { done }
}

/// The handle of an open file, and the unix VFS's file behind it.
///
/// # Safety
/// `file` was filled by `open` and is not closed; no other reference to it is in use.
unsafe fn parts<'a>(file: *mut ffi::sqlite3_file) -> (&'a mut OpenFile, *mut ffi::sqlite3_file) {
    // SAFETY: guaranteed by the caller; `open` wrote both pointers.
    unsafe {
        let ours = file.cast::<Opened>();
        (&mut *(*ours).handle, (*ours).real)
    }
}

/// Forwards a call to the unix VFS.
macro_rules! real {
    ($file:expr, $method:ident $(, $arg:expr)*) => {{
        let real: *mut ffi::sqlite3_file = $file;
        // SAFETY: the real file was opened by the unix VFS, which has every method of version 2.
        unsafe { ((*(*real).pMethods).$method.expect("the unix VFS has it"))(real $(, $arg)*) }
    }};
}

/// Defines a method that forwards to the unix VFS. Where an error code is given, the method returns it without power.
macro_rules! forward {
    ($name:ident($($arg:ident: $kind:ty),*) $(-> $result:ty)? => $method:ident $(, without power $code:ident)?) => {
        unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $arg: $kind)*) $(-> $result)? {
            // SAFETY: SQLite calls the methods of a file only while it is open.
            let opened = unsafe { parts(file) };
            $(if opened.0.is_dead() {
                return ffi::$code;
            })?
            real!(opened.1, $method $(, $arg)*)
        }
    };
}

forward!(read(into: *mut c_void, bytes: c_int, at: i64) -> c_int => xRead, without power SQLITE_IOERR_READ);
forward!(file_size(size: *mut i64) -> c_int => xFileSize, without power SQLITE_IOERR_FSTAT);
forward!(lock(level: c_int) -> c_int => xLock, without power SQLITE_IOERR_LOCK);
forward!(unlock(level: c_int) -> c_int => xUnlock);
forward!(check_reserved_lock(held: *mut c_int) -> c_int => xCheckReservedLock);
forward!(sector_size() -> c_int => xSectorSize);
forward!(device_characteristics() -> c_int => xDeviceCharacteristics);
forward!(
    shm_map(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) -> c_int
        => xShmMap, without power SQLITE_IOERR_SHMMAP
);
// Works without power too: SQLite must be able to release its locks.
forward!(shm_lock(offset: c_int, n: c_int, flags: c_int) -> c_int => xShmLock);
forward!(shm_barrier() => xShmBarrier);
forward!(shm_unmap(delete: c_int) -> c_int => xShmUnmap);

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file it opened, once.
    let (handle, real) = unsafe { parts(file) };
    let handle: *mut OpenFile = handle;
    // SAFETY: made by `Box::into_raw` in `open`, and not used after this.
    drop(unsafe { Box::from_raw(handle) });
    real!(real, xClose)
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, from: *const c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: SQLite writes a file that is open.
    let (handle, real) = unsafe { parts(file) };
    let len = usize::try_from(bytes).expect("SQLite writes no negative number of bytes");
    // SAFETY: SQLite hands in as many bytes as it says.
    let from = unsafe { slice::from_raw_parts(from.cast::<u8>(), len) };
    let mut done = ffi::SQLITE_OK;
    let fate = handle.write(u64::try_from(at).unwrap_or(0), from, |part| {
        if !part.is_empty() {
            let len = c_int::try_from(part.len()).expect("not more than SQLite handed in");
            done = real!(real, xWrite, part.as_ptr().cast(), len, at);
        }
    });
    match fate {
        CallFate::Done => done,
        // The codes that the unix VFS returns.
        CallFate::Fails(FaultKind::Full) => ffi::SQLITE_FULL,
        CallFate::Fails(FaultKind::Silent) => ffi::SQLITE_OK,
        CallFate::Fails(FaultKind::Broken) | CallFate::Dead => ffi::SQLITE_IOERR_WRITE,
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, len: i64) -> c_int {
    // SAFETY: SQLite truncates a file that is open.
    let (handle, real) = unsafe { parts(file) };
    let mut done = ffi::SQLITE_OK;
    let fate = handle.truncate(u64::try_from(len).unwrap_or(0), || done = real!(real, xTruncate, len));
    if fate == CallFate::Dead { ffi::SQLITE_IOERR_TRUNCATE } else { done }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: SQLite syncs a file that is open.
    let (handle, _) = unsafe { parts(file) };
    match handle.sync() {
        CallFate::Done => ffi::SQLITE_OK,
        // The unix VFS returns this code for every failed sync.
        CallFate::Fails(_) | CallFate::Dead => ffi::SQLITE_IOERR_FSYNC,
    }
}

unsafe extern "C" fn file_control(file: *mut ffi::sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: SQLite calls this with an open file.
    let (handle, real) = unsafe { parts(file) };
    if op == ffi::SQLITE_FCNTL_PRAGMA && handle.weakens() {
        // SAFETY: for this operation SQLite hands in an array of C strings that are its own to change.
        unsafe { weaken(arg.cast()) };
    }
    // The hint would make the unix VFS extend the file without a write that the simulated disk could record.
    if op == ffi::SQLITE_FCNTL_SIZE_HINT {
        return ffi::SQLITE_OK;
    }
    real!(real, xFileControl, op, arg)
}

/// Turns `synchronous = FULL` into `NORMAL` in place: SQLite passes a pragma to the file first, and reads the argument
/// afterwards.
///
/// # Safety
/// `args` is what SQLite hands in with `SQLITE_FCNTL_PRAGMA`: an error to set, the name, the
/// argument or null.
unsafe fn weaken(args: *mut *mut c_char) {
    // SAFETY: guaranteed by the caller. "FULL" is longer than what replaces it.
    unsafe {
        let (name, value) = (*args.add(1), *args.add(2));
        if value.is_null() || CStr::from_ptr(name) != c"synchronous" || CStr::from_ptr(value) != c"FULL" {
            return;
        }
        value.write(b'1'.cast_signed());
        value.add(1).write(0);
    }
}
