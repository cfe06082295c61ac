// Nothing is added to the elements of a row.
fn row_bias(i: u32) -> f32 { return 0.0; }
