// What is added to each element of a row.
fn row_bias(i: u32) -> f32 { return bias[i]; }
