fn bias_of(n: u32) -> f32 { return bias_quants[n / 4u][n % 4u]; }
