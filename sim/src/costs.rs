//! Costs: how long a worker is busy with what it does, in virtual time.
//!
//! The switch's own work is counted in instructions, by callgrind (valgrind.org) and without I/O:
//! the difference of two runs of `levada-sim work` with different numbers of operations
//! (`sim/tests/costs.rs` counts again). What the kernel does in a read and a write of a TAP device
//! cannot be counted in a virtual machine; it is measured. Both in nanoseconds are those of one
//! machine, so that a simulation repeats; that a live worker measures the same where it runs, by
//! the speed of there, is a test (`levada/tests/daemon/costs.rs`), and so is that segments and
//! copies take as long there. The README says which constant is what.

/// Instructions of the switch for a frame from one endpoint to another.
pub const FORWARD_INSTRUCTIONS: u64 = 884;
/// For a segment that is cut off, with its checksum and its way out.
pub const CUT_INSTRUCTIONS: u64 = 1329;
/// For a byte of it, in thousandths.
pub const CUT_BYTE_MILLI: u64 = 1592;
/// For a copy of a short frame that goes to many, with its way out.
pub const COPY_INSTRUCTIONS: u64 = 909;

/// What an instruction took on the machine of the table (two virtual cores of an AMD EPYC), in
/// nanoseconds.
const INSTRUCTION_NS: f64 = 0.23;
/// Reading a frame from a TAP device there, and writing one, which runs the receiver's network
/// stack: a live worker said 2.96 us for 60 bytes and 8.9 us for 64 KiB, the switch's part
/// included, of which writing is two thirds.
const READ: Cost = Cost::new(900, 40);
const WRITE: Cost = Cost::new(1_800, 50);
/// Copying a byte within the switch: as reading one.
const COPY_BYTE_PS: u64 = 40;
/// A round of the loop: the clock, and a look whether anything has come.
const ROUND_NS: u64 = 400;

/// What an operation costs: so much for it, and so much for each byte, in picoseconds, so that a
/// byte has more than one digit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Whatever its length, in picoseconds.
    pub each_ps: u64,
    /// For each byte, in picoseconds.
    pub byte_ps: u64,
}

impl Cost {
    /// A cost of so many nanoseconds, and so many picoseconds a byte.
    #[must_use]
    pub const fn new(each_ns: u64, byte_ps: u64) -> Cost {
        Cost { each_ps: each_ns * 1000, byte_ps }
    }

    /// Of so many operations with so many bytes in all, in picoseconds.
    #[must_use]
    pub fn of(&self, operations: u64, bytes: u64) -> u64 {
        operations * self.each_ps + bytes * self.byte_ps
    }
}

/// What a worker's operations cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A round of its loop.
    pub round_ns: u64,
    /// Reading a frame from a port.
    pub read: Cost,
    /// Writing one to a port.
    pub write: Cost,
    /// The switch's own work for a frame, from port to queue and from queue to port.
    pub forward: Cost,
    /// A segment that is cut off.
    pub cut: Cost,
    /// A copy.
    pub copy: Cost,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs::at(INSTRUCTION_NS, READ, WRITE)
    }
}

impl Costs {
    /// Where an instruction takes so long, and the kernel this for reading and writing.
    #[must_use]
    pub fn at(instruction_ns: f64, read: Cost, write: Cost) -> Costs {
        let ps = |instructions: u64| (instructions as f64 * instruction_ns * 1e3) as u64;
        Costs {
            round_ns: ROUND_NS,
            read,
            write,
            forward: Cost { each_ps: ps(FORWARD_INSTRUCTIONS), byte_ps: 0 },
            cut: Cost { each_ps: ps(CUT_INSTRUCTIONS), byte_ps: ps(CUT_BYTE_MILLI) / 1000 },
            copy: Cost { each_ps: ps(COPY_INSTRUCTIONS), byte_ps: COPY_BYTE_PS },
        }
    }

    /// A frame of so many bytes that is read, forwarded and written, in picoseconds.
    #[must_use]
    pub fn frame_ps(&self, bytes: u64) -> u64 {
        self.read.of(1, bytes) + self.forward.of(1, bytes) + self.write.of(1, bytes)
    }
}
