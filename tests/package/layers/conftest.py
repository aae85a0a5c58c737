"""A small network to pick layers of, and one that holds modules twice."""

import pytest
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3, padding=1)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(self.relu(self.conv1(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer2 = nn.Sequential(Block())
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        x = self.avg_pool(self.layer2(self.layer1(self.relu(self.conv1(x)))))
        return self.fc(x.flatten(1))


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def shared():
    act, block = nn.ReLU(), nn.Sequential(nn.Linear(2, 2))
    return nn.ModuleDict({"a": act, "enc": block, "b": act, "dec": block})
