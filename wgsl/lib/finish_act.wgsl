// y = act(acc)
override STRIDE: u32;  // values of a token
override FIRST: u32;   // where the rows of this product begin among them

fn finish(token: u32, row: u32, acc: array<f32, PARTS>) {
  y[token * STRIDE + FIRST + row] = act(acc[0]);
}
