// y = silu(gate) * up, the gated unit of Llama-like models; both parts come from one product.
fn finish(i: u32, acc: array<f32, PARTS>) {
  y[i] = acc[0] / (1.0 + exp(-acc[0])) * acc[1];
}
