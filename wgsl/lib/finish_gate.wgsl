// y = act(gate) * up, the gated unit of Llama-like models; both parts come from one product.
override STRIDE: u32;  // values of a token
override FIRST: u32;   // where the rows of this product begin among them

fn finish(token: u32, row: u32, acc: array<f32, PARTS>) {
  y[token * STRIDE + FIRST + row] = act(acc[0]) * acc[1];
}
