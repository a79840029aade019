//! A program under construction: instructions, and jumps to places that are yet to come.

use crate::packet::bpf::{CALL, EXIT, Instruction, MOVE, op};

/// Operations, of the instruction set's standard (RFC 9669); those that end in `_TO` take a
/// register, the others a constant.
pub const MOVE_TO: u8 = 0xbf;
pub const ADD: u8 = 0x07;
pub const ADD_TO: u8 = 0x0f;
pub const SUBTRACT_TO: u8 = 0x1f;
pub const MULTIPLY_TO: u8 = 0x2f;
pub const DIVIDE_TO: u8 = 0x3f;
/// On the lower 32 bits.
pub const AND: u8 = 0x54;
pub const SHIFT_LEFT: u8 = 0x67;
pub const SHIFT_RIGHT: u8 = 0x77;
/// From or to the order of the network; the constant is how many bits.
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
pub const IF_EQUAL: u8 = 0x15;
pub const IF_NOT: u8 = 0x55;
pub const IF_MORE: u8 = 0x25;
pub const IF_LESS: u8 = 0xa5;
pub const IF_EQUAL_TO: u8 = 0x1d;
pub const IF_NOT_TO: u8 = 0x5d;
pub const IF_MORE_TO: u8 = 0x2d;
/// On the lower 32 bits, so that a constant is not taken for a negative number.
pub const IF_WORD: u8 = 0x16;
pub const IF_NOT_WORD: u8 = 0x56;
/// The first of two instructions whose constants are the lower and the upper half of a number, or
/// stand for a map.
const LOAD_LONG: u8 = 0x18;
/// In its source register: the map of this number (`BPF_PSEUDO_MAP_FD`); the first value in it
/// (`BPF_PSEUDO_MAP_VALUE`).
const A_MAP: u8 = 1;
const A_VALUE: u8 = 2;

/// Sizes of what is read and written.
#[derive(Clone, Copy)]
pub enum Size {
    Byte,
    Half,
    Word,
    Long,
}

impl Size {
    const fn bits(self) -> u8 {
        match self {
            Size::Byte => 0x10,
            Size::Half => 0x08,
            Size::Word => 0x00,
            Size::Long => 0x18,
        }
    }
}

/// The register that points behind a program's stack.
pub const STACK: u8 = 10;

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// The program so far.
#[derive(Default)]
pub struct Code {
    list: Vec<Instruction>,
    places: Vec<Option<usize>>,
    /// Jumps, with where they lead.
    jumps: Vec<(usize, Label)>,
}

impl Code {
    /// A place that is yet to come.
    pub fn place(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The place is here.
    pub fn here(&mut self, place: Label) {
        self.places[place.0] = Some(self.list.len());
    }

    pub fn set(&mut self, to: u8, value: i32) {
        self.list.push(op(MOVE, to, 0, 0, value));
    }

    /// An operation on a register with a constant.
    pub fn with(&mut self, operation: u8, to: u8, value: i32) {
        self.list.push(op(operation, to, 0, 0, value));
    }

    /// An operation on a register with another.
    pub fn both(&mut self, operation: u8, to: u8, from: u8) {
        self.list.push(op(operation, to, from, 0, 0));
    }

    pub fn load(&mut self, size: Size, to: u8, base: u8, at: i16) {
        self.list.push(op(0x61 | size.bits(), to, base, at, 0));
    }

    pub fn store(&mut self, size: Size, base: u8, at: i16, from: u8) {
        self.list.push(op(0x63 | size.bits(), base, from, at, 0));
    }

    /// A constant word.
    pub fn store_word(&mut self, base: u8, at: i16, value: i32) {
        self.list.push(op(0x62, base, 0, at, value));
    }

    /// A half word in the network's order becomes a number.
    pub fn number(&mut self, register: u8) {
        self.list.push(op(TO_BIG_ENDIAN, register, 0, 0, 16));
    }

    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.list.len(), to));
        self.list.push(op(JUMP, 0, 0, 0, 0));
    }

    /// Jumps where a register compares so with a constant.
    pub fn when(&mut self, comparison: u8, register: u8, value: i32, to: Label) {
        self.jumps.push((self.list.len(), to));
        self.list.push(op(comparison, register, 0, 0, value));
    }

    /// The same with another register.
    pub fn when_to(&mut self, comparison: u8, register: u8, other: u8, to: Label) {
        self.jumps.push((self.list.len(), to));
        self.list.push(op(comparison, register, other, 0, 0));
    }

    pub fn map(&mut self, to: u8, number: i32) {
        self.list.extend([op(LOAD_LONG, to, A_MAP, 0, number), op(0, 0, 0, 0, 0)]);
    }

    /// A register points to the first value of a map.
    pub fn value(&mut self, to: u8, number: i32) {
        self.list.extend([op(LOAD_LONG, to, A_VALUE, 0, number), op(0, 0, 0, 0, 0)]);
    }

    pub fn call(&mut self, helper: i32) {
        self.list.push(op(CALL, 0, 0, 0, helper));
    }

    /// Ends with `value`.
    pub fn end(&mut self, value: i32) {
        self.set(0, value);
        self.exit();
    }

    pub fn exit(&mut self) {
        self.list.push(op(EXIT, 0, 0, 0, 0));
    }

    /// The program. Every place that is jumped to lies behind the jump, so that it ends.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, Label(place)) in self.jumps {
            let to = self.places[place].expect("a place that is jumped to");
            self.list[at].offset = i16::try_from(to - at - 1).expect("a program of less than 32 768 instructions");
        }
        self.list
    }
}
