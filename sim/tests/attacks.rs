//! What holds under attack, as the committed tables say; that the tables are what the simulator
//! gives, `snapshots.rs` sees to.

/// Attacks under which, alone and in pairs of them, all that was promised holds.
const HELD: [&str; 11] = [
    "crumbs",
    "slices",
    "copies",
    "hoard-long",
    "hoard-short",
    "crowd",
    "mac-theft",
    "ll-theft",
    "storm",
    "from-outside",
    "forged",
];

#[test]
fn no_attack_and_no_two_of_them_take_anything_from_the_victim() {
    let text = include_str!("../snapshots/attacks.txt");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let mut seen = 0;
    for (i, one) in HELD.iter().enumerate() {
        let alone =
            rows.iter().find(|row| row.first() == Some(one) && row.get(1).is_some_and(|c| ["yes", "NO"].contains(c)));
        assert_eq!(alone.and_then(|row| row.get(1)), Some(&"yes"), "{one} alone");
        for other in &HELD[i + 1..] {
            let both = rows.iter().find(|row| row.get(..2) == Some(&[*one, *other]));
            assert_eq!(both.and_then(|row| row.get(2)), Some(&"yes"), "{one} and {other}");
            seen += 1;
        }
    }
    assert_eq!(seen, HELD.len() * (HELD.len() - 1) / 2);
}

#[test]
fn shares_of_time_are_those_of_the_link() {
    let text = include_str!("../snapshots/turns.txt");
    let claims: Vec<&str> = text.lines().filter(|line| line.contains("(<= ")).collect();
    assert_eq!(claims.len(), 4, "{text}");
    assert!(claims.iter().all(|claim| claim.starts_with("holds: ")), "{text}");
}
