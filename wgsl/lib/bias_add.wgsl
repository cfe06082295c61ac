fn bias_of(n: u32) -> f32 {
  let i = FIRST + n;
  return bias_quants[i / 4u][i % 4u];
}
