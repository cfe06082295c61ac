// y = residual + acc
fn finish(i: u32, acc: array<f32, PARTS>) { y[i] = residual[i] + acc[0]; }
