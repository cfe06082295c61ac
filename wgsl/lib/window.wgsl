// Where what a token sees begins: it is the last one of `length` tokens and sees WINDOW of them,
// or all if that is 0.
override WINDOW: u32;

fn seen_from(length: u32) -> u32 { return select(0u, length - min(length, WINDOW), WINDOW > 0u); }
