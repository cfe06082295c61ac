// A function of elements that has no operand b.
fn b_of(at: Index) -> u32 { return 0u; }
