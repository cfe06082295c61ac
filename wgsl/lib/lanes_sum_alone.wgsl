// One lane has nothing to add.
fn lanes_sum(value: f32) -> f32 { return value; }
