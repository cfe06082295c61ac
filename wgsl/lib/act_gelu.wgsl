// GELU by tanh (Hendrycks and Gimpel, 2016), which is x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
fn act(x: f32) -> f32 { return x / (1.0 + exp(-x * (1.5957691216 + 0.0713548163 * x * x))); }
