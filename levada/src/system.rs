//! What the program needs of the system below it: rights, descriptors, memory, files, the log, and
//! how often something is done. It uses no other module of the program.

pub mod descriptors;
pub mod door;
pub mod ending;
pub mod lines;
pub mod log;
pub mod memory;
pub mod os;
pub mod pace;
pub mod privileges;
pub mod replace;
