// A function of elements that has no operand c.
fn c_of(at: Index) -> u32 { return 0u; }
