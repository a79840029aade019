//! Error messages of switches in words (OpenFlow 1.3.5, section 7.4.4).

/// What was refused, by type of error.
const KINDS: [(u16, &str, &[&str]); 8] = [
    (0, "the handshake", &["no version is common", "not permitted"]),
    (
        1,
        "a request",
        &[
            "wrong version",
            "unknown type of message",
            "unknown question",
            "unknown experimenter",
            "unknown message of the experimenter",
            "not permitted",
            "wrong length",
            "the buffer is empty",
            "unknown buffer",
            "wrong table",
            "another controller is the master",
            "wrong port",
            "wrong packet",
            "the answer is too long",
        ],
    ),
    (
        2,
        "an action",
        &[
            "unknown type",
            "wrong length",
            "unknown experimenter",
            "unknown action of the experimenter",
            "wrong port",
            "wrong argument",
            "not permitted",
            "too many",
            "wrong queue",
            "no such group",
            "it does not fit what the flow matches",
            "wrong order",
            "wrong tag",
            "this field cannot be set",
            "wrong length of the field",
            "wrong value of the field",
        ],
    ),
    (
        3,
        "an instruction",
        &[
            "unknown type",
            "unsupported",
            "wrong table",
            "metadata unsupported",
            "mask of metadata unsupported",
            "unknown experimenter",
            "unknown instruction of the experimenter",
            "wrong length",
            "not permitted",
        ],
    ),
    (
        4,
        "a match",
        &[
            "unknown type",
            "wrong length",
            "unknown tag",
            "mask of Ethernet addresses unsupported",
            "mask of IP addresses unsupported",
            "wrong wildcards",
            "unknown field",
            "wrong value",
            "wrong mask",
            "what a field presupposes is missing",
            "a field is there twice",
            "not permitted",
        ],
    ),
    (
        5,
        "a flow",
        &[
            "no reason given",
            "the table is full",
            "no such table",
            "it overlaps another",
            "not permitted",
            "wrong timeout",
            "unknown command",
            "wrong flags",
        ],
    ),
    (
        6,
        "a group",
        &[
            "it is there already",
            "wrong group",
            "weights unsupported",
            "no room for groups",
            "no room for buckets",
            "groups in groups unsupported",
            "watching unsupported",
            "a loop",
            "no such group",
            "a group uses it",
            "wrong type",
            "unknown command",
            "wrong bucket",
            "wrong port to watch",
            "not permitted",
        ],
    ),
    (11, "the role", &["another controller has a newer generation", "unsupported", "unknown role"]),
];
/// Type of an error: the role was refused; code: the generation is stale.
pub const STALE: (u16, u16) = (11, 0);
/// Type and code where a controller with the role of a slave wants to change something.
pub const IS_SLAVE: (u16, u16) = (1, 10);
/// Types of errors: a flow was refused, for instance since the table is full, or since its group is
/// missing, or a group was.
pub const OF_RULES: [u16; 3] = [5, 2, 6];
/// Type and code of a hello without a common version.
pub const INCOMPATIBLE: (u16, u16) = (0, 0);
/// Type and code of a message with a wrong length.
pub const BAD_LENGTH: (u16, u16) = (1, 6);

/// An error in words.
#[must_use]
pub fn words(kind: u16, code: u16) -> String {
    let Some((_, what, codes)) = KINDS.iter().find(|(number, ..)| *number == kind) else {
        return format!("something, with error type {kind} and code {code}");
    };
    match codes.get(usize::from(code)) {
        Some(why) => format!("{what}: {why}"),
        None => format!("{what}, with code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_words() {
        assert_eq!(words(5, 1), "a flow: the table is full");
        assert_eq!(words(5, 99), "a flow, with code 99");
        assert_eq!(words(IS_SLAVE.0, IS_SLAVE.1), "a request: another controller is the master");
        assert_eq!(words(77, 1), "something, with error type 77 and code 1");
    }
}
