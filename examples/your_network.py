# SPDX-License-Identifier: Apache-2.0
"""Your network: replace its last layer by `BasisFit`, train it, and get error bars."""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import halve


class Net(nn.Module):
    """Any network will do that returns feature maps; here three convolutions."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ELU())
        self.deep = nn.Sequential(nn.Conv2d(16, 24, 3, stride=4, padding=1), nn.ELU())
        self.coarse, self.fine = nn.Conv2d(24, 8, 1), nn.Conv2d(16, 4, 1)
        self.fit = deepbasis.BasisFit(12)  # 8 + 4 bases; the layer adds a constant

    def forward(self, image, sparse):
        """Log depth, model variance and noise variance."""
        half = self.down(image)
        return self.fit([self.coarse(self.deep(half)).tanh(), self.fine(half).tanh()], sparse)


torch.manual_seed(0)
rooms = [halve(halve(packaged("rooms")[i])) for i in range(3)]  # stands in for your data
image = torch.stack([room.image for room in rooms]).float() / 255
depth = torch.stack([room.depth for room in rooms])
known = deepbasis.latent.is_valid(depth)


def points(share):
    """Sparse depth: some of the pixels; 0 means no measurement."""
    return depth * (torch.rand(depth.shape) < share)


net = Net()
optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
losses = []
for _ in range(60):  # in training, the layer is a differentiable least-squares fit
    error = net(image, points(0.2)).mean - deepbasis.latent.to_latent(depth)
    losses.append(error[known].abs().mean())
    optimiser.zero_grad()
    losses[-1].backward()
    optimiser.step()
print(f"training loss {losses[0]:.3f} before, {losses[-1]:.3f} after {len(losses)} steps")

net.fit.collect_weights()  # the prior is learned from the fitted weights
with torch.no_grad():
    for _ in range(10):
        net(image, points(0.1))
net.fit.learn_prior()

net.eval()  # from now on, a Bayesian fit with the prior: any number of points
for share in (0, 0.005, 0.2):
    found = net(image, points(share))
    low, high = deepbasis.latent.interval(found.mean, found.var, 0.9)
    error = (deepbasis.latent.to_depth(found.mean) - depth)[known].abs().mean()
    width = (high - low)[known].mean()
    print(f"{share:5.1%} of the pixels: mean error {error:.2f} m, 90 % interval {width:.2f} m wide")

fig, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
axes[0].imshow(image[0].permute(1, 2, 0))
axes[0].set_title("image")
middle = deepbasis.latent.to_depth(found.mean)[0, 0]
fig.colorbar(axes[1].imshow(middle, cmap="viridis"), ax=axes[1])
axes[1].set_title("depth (m)")
fig.colorbar(axes[2].imshow((high - low)[0, 0], cmap="magma"), ax=axes[2])
axes[2].set_title("width of the 90 % interval (m)")
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "your_network.png")
