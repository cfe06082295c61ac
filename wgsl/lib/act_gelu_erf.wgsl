// GELU (Hendrycks and Gimpel, 2016).
fn act(x: f32) -> f32 { return 0.5 * x * (1.0 + erf(x * 0.70710678)); }
