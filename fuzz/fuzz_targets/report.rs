#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| levada_fuzz::report::run(data));
