//! Secrets that two bonds have, out of files.

use datapath::bond::hello::HelloKey;
use ring::digest::{SHA256, digest};
use std::path::Path;

/// Fewest and most bytes of a secret, blanks at its ends aside.
const LEAST: usize = 16;
const MOST: usize = 4096;
/// What comes before the secret where a key is made of it: keys for anything else are others.
const PURPOSE: &[u8] = b"levada bond hello\0";

/// The key that hellos are hashed with: the first 128 bits of SHA-256 of purpose and secret.
///
/// # Errors
/// In words: the file cannot be read, or what is in it is too short or too long for a secret.
pub fn hello_key(file: &Path) -> Result<HelloKey, String> {
    let shown = file.display();
    let bytes = std::fs::read(file).map_err(|error| format!("secret_file {shown} cannot be read: {error}"))?;
    let secret = bytes.trim_ascii();
    if secret.len() < LEAST {
        let remedy = format!("head -c 32 /dev/urandom | base64 > {shown}");
        return Err(format!(
            "secret_file {shown} has fewer than {LEAST} bytes: {remedy}, then copy it to the other host"
        ));
    }
    if secret.len() > MOST {
        return Err(format!("secret_file {shown} has more than {MOST} bytes"));
    }
    let hash = digest(&SHA256, &[PURPOSE, secret].concat());
    hash.as_ref().first_chunk().map(|key| HelloKey(*key)).ok_or_else(|| "SHA-256 is too short".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_of_the_secret_and_not_of_the_blanks_around_it() {
        let directory = std::env::temp_dir().join(format!("levada-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("secret");
        let key = |text: &str| {
            std::fs::write(&file, text).unwrap();
            hello_key(&file)
        };
        let one = key("0123456789abcdef").unwrap();
        assert_eq!(key(" 0123456789abcdef\n"), Ok(one));
        assert_ne!(key("0123456789abcdeg").unwrap(), one);
        assert!(key("0123456789abcde\n").unwrap_err().contains("fewer than 16 bytes"));
        assert!(key(&"x".repeat(5000)).unwrap_err().contains("more than 4096"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(hello_key(&file).unwrap_err().contains("cannot be read"));
    }
}
