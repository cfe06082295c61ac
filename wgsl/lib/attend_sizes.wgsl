// M queries, N keys and how they lie: where the first element is, and the step along each axis.
override M: u32;
override N: u32;
override HEADS: u32;  // of the inner axis in front
override SCALE: f32;
override GUARDED: u32;
override Q_AT: i32;
override Q0: i32;
override Q1: i32;
override Q2: i32;
override Q3: i32;
override K_AT: i32;
override K0: i32;
override K1: i32;
override K2: i32;
override K3: i32;
override V_AT: i32;
override V0: i32;
override V1: i32;
override V2: i32;
override V3: i32;
override Y_AT: i32;
override Y0: i32;
override Y1: i32;
override Y2: i32;
override Y3: i32;
