# SPDX-License-Identifier: Apache-2.0
"""The numbers of the paper's tables."""

METRICS = ("mae", "rmse", "delta1", "ause", "auce", "nll")

# Points, input and method; then six metrics on VKITTI2 and six on NYU-V2.
_MID = """
5%  rgbd snap      1.192 3.267 95.59 0.445 0.170 -0.714   0.061 0.126 99.35 0.036 0.202 -1.390
5%  rgbd snap+log  1.271 3.432 95.33 0.142 0.117 -1.582   0.058 0.123 99.32 0.018 0.256 -1.596
5%  rgbd log       1.318 3.423 95.37 0.149 0.125 -1.421   0.057 0.121 99.34 0.018 0.210 -1.783
5%  rgbd dbf       0.709 2.928 97.88 0.148 0.163 -2.489   0.026 0.083 99.64 0.007 0.054 -3.145
5%  rgbd bdbf      0.703 2.925 97.88 0.110 0.136 -2.596   0.026 0.082 99.64 0.007 0.039 -3.151
1%  rgbd snap      1.784 4.679 92.04 0.805 0.214  0.730   0.087 0.198 97.65 0.051 0.238 -0.387
1%  rgbd snap+log  1.805 4.755 92.03 0.235 0.062 -1.333   0.089 0.211 97.35 0.025 0.202 -1.451
1%  rgbd log       1.831 4.769 92.21 0.223 0.147 -1.168   0.087 0.214 97.31 0.023 0.157 -1.605
1%  rgbd dbf       1.393 4.384 94.52 0.350 0.110 -1.670   0.055 0.155 98.45 0.016 0.072 -2.381
1%  rgbd bdbf      1.382 4.372 94.53 0.271 0.082 -1.707   0.055 0.155 98.45 0.016 0.059 -2.374
"""
_LOW = """
500 rgbd snap      2.312 5.403 90.14 0.459 0.229 -0.207   0.096 0.206 97.53 0.053 0.261  0.211
500 rgbd snap+log  2.396 5.571 89.88 0.273 0.036 -1.150   0.095 0.213 97.44 0.025 0.205 -1.393
500 rgbd log       2.492 5.800 89.13 0.299 0.095 -0.906   0.097 0.212 97.44 0.025 0.152 -1.502
500 rgbd dbf       2.050 5.067 92.58 0.453 0.051 -1.175   0.065 0.168 98.45 0.020 0.055 -2.186
500 rgbd bdbf      2.015 4.994 92.71 0.392 0.014 -1.215   0.064 0.166 98.46 0.021 0.030 -2.199
500 rgb  bdbf      2.569 5.642 88.67 0.481 0.015 -0.979   0.098 0.199 98.48 0.030 0.014 -1.689
50  rgbd snap      5.069 9.326 66.48 1.696 0.327  3.495   0.324 0.605 78.89 0.136 0.376  6.036
50  rgbd snap+log  5.173 9.401 65.91 1.180 0.188  0.608   0.312 0.593 80.55 0.084 0.052 -0.390
50  rgbd log       5.107 9.433 66.52 1.114 0.275  2.439   0.323 0.599 80.49 0.088 0.134 -0.166
50  rgbd bdbf      4.098 8.440 76.91 0.977 0.021 -0.411   0.215 0.446 88.63 0.081 0.026 -0.926
50  rgb  bdbf      3.725 7.786 80.67 0.701 0.012 -0.612   0.144 0.296 94.97 0.039 0.011 -1.338
0   rgb  log       6.758 11.78 61.48 1.591 0.291  2.407   0.366 0.561 75.08 0.161 0.191  0.187
0   rgb  bdbf      5.809 9.610 62.78 1.381 0.264  0.809   0.664 0.944 47.76 0.245 0.044  0.459
"""
# Trained at 5 % on VKITTI2: tested on its turned cameras and on KITTI; and on KITTI alone.
_SHIFT = """
15-deg rgbd snap      1.164 3.161 95.67 0.445 0.172 -0.733
15-deg rgbd snap+log  1.206 3.260 95.43 0.131 0.103 -1.558
15-deg rgbd log       1.301 3.328 95.38 0.144 0.137 -1.347
15-deg rgbd bdbf      0.686 2.861 97.92 0.101 0.139 -2.618
30-deg rgbd snap      1.084 3.009 95.39 0.428 0.175 -0.740
30-deg rgbd snap+log  1.139 3.106 95.10 0.128 0.087 -1.509
30-deg rgbd log       1.217 3.166 95.10 0.141 0.146 -1.251
30-deg rgbd bdbf      0.627 2.711 98.02 0.085 0.143 -2.676
kitti  rgbd snap      1.296 2.549 92.03 0.876 0.161 -0.675
kitti  rgbd snap+log  0.853 2.245 97.69 0.134 0.117 -1.578
kitti  rgbd log       0.866 2.018 97.96 0.138 0.274 -0.755
kitti  rgbd bdbf      0.469 1.989 98.29 0.072 0.037 -2.381
"""
# Trained and tested on KITTI with the points of its sensor, which are about 5 % of the pixels.
_KITTI = """
sensor rgbd snap   0.638 1.663 98.68 0.272 0.161 -1.298
sensor rgbd snap+log 0.701 1.784 98.52 0.092 0.105 -1.605
sensor rgbd log    0.899 2.022 98.44 0.109 0.133 -1.544
sensor rgbd bdbf   0.364 1.682 98.74 0.060 0.100 -2.337
"""
# Milliseconds an image of 320 x 240 pixels, at 5 %, on the authors' GPU.
RUNTIME = {"snap": 68.84, "snap+log": 66.17, "log": 16.68, "dbf": 21.84, "bdbf": 23.97}

# iRMSE and iMAE (1/km), RMSE and MAE (mm) of selected methods on KITTI's test frames.
PUBLISHED = {
    "S2D": (2.80, 1.21, 814.73, 249.95),
    "Gansbeke": (2.19, 0.93, 772.87, 215.02),
    "DepthNormal": (2.42, 1.13, 777.05, 235.17),
    "DeepLiDAR": (2.56, 1.15, 758.38, 226.50),
    "FuseNet": (2.34, 1.14, 752.88, 221.19),
    "CSPN++": (2.07, 0.90, 743.69, 209.28),
    "NLSPN": (1.99, 0.84, 741.68, 199.59),
    "GuideNet": (2.25, 0.99, 736.24, 218.83),
    "bdbf": (2.37, 0.89, 900.38, 216.44),
}
# MAE and RMSE (mm), AUSE, AUCE and NLL on KITTI's validation frames.
UNGUIDED: dict[str, tuple[float | None, ...]] = {
    "NCNN-L2": (258.68, 954.34, 0.70, None, None),
    "pNCNN": (283.41, 1237.65, 0.055, None, None),
    "pNCNN-Exp": (251.77, 960.05, 0.065, None, None),
    "bdbf": (206.70, 876.76, 0.057, 0.23, -2.68),
}

Key = tuple[str, str, str]
"""Points (or, under shift, the domain), input and method."""
Numbers = dict[Key, dict[str, float]]


def _read(text: str, data_set: int = 0) -> Numbers:
    """The columns of one data set, counted from 0."""
    found: Numbers = {}
    for line in text.split("\n"):
        if words := line.split():
            points, depth_input, method, *values = words
            mine = values[6 * data_set : 6 * data_set + 6]
            numbers = dict(zip(METRICS, map(float, mine), strict=True))
            found[points, depth_input, method] = numbers
    return found


# By data set and target.
TABLES: dict[tuple[str, str], Numbers] = {
    ("vkitti2", "mid"): _read(_MID, 0),
    ("nyu", "mid"): _read(_MID, 1),
    ("kitti", "mid"): _read(_KITTI),
    ("vkitti2", "low"): _read(_LOW, 0),
    ("nyu", "low"): _read(_LOW, 1),
    ("vkitti2", "shift"): _read(_SHIFT),
}


def table(data: str, target: str) -> Numbers:
    """The paper's numbers; empty where it has none."""
    return TABLES.get((data, target), {})
