"""The job of `finesight up` and of `finesight evaluate` as one would write it with lightly, torchvision and faiss.

    python benchmarks/peer.py PHOTOS --weights resnet50.safetensors                  # embed, index, search once
    python benchmarks/peer.py TRAIN TEST --weights resnet50.safetensors              # class folders: scores

`benchmarks/jobs.py` runs it beside FineSight. Average pooled features of a ResNet-50 at 224 px, without a page, a
cache or an index on disk.
"""

import argparse
import time

import faiss
import numpy as np
import torch
import torchvision
from lightly.data import LightlyDataset
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from torchvision import transforms


def load_network(weights: str) -> torch.nn.Module:
    network = torchvision.models.resnet50(weights=None)
    network.fc = torch.nn.Identity()
    network.load_state_dict({k: v.float() for k, v in load_file(weights).items()}, strict=False)
    for stage in (network.layer2, network.layer3, network.layer4):  # the strides of the caffe weights
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return network.eval().to(memory_format=torch.channels_last)


@torch.no_grad()
def embed(network: torch.nn.Module, folder: str, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    dataset = LightlyDataset(folder, transform=transforms.Compose([*steps, normalize]))
    subset = torch.utils.data.Subset(dataset, range(len(dataset))[:limit])
    features, labels = [], []
    for views, label, _ in torch.utils.data.DataLoader(subset, batch_size=32, num_workers=2):
        features.append(network(views.to(memory_format=torch.channels_last)))
        labels.append(label)
    return torch.nn.functional.normalize(torch.cat(features)).numpy(), torch.cat(labels).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    network = load_network(options.weights)
    x, y = embed(network, options.folders[-1], options.limit)
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    _, found = index.search(x, 1 if len(options.folders) == 1 else len(x))
    if len(options.folders) == 2:
        right = y[found[:, 1:]] == y[:, None]
        precision = right.cumsum(1) / np.arange(1, right.shape[1] + 1)
        mean = ((precision * right).sum(1) / np.maximum(right.sum(1), 1)).mean()
        train_x, train_y = embed(network, options.folders[0], options.limit)
        top1 = LogisticRegression(C=10, max_iter=200).fit(train_x, train_y).score(x, y)
        print(f"rank-1 {right[:, 0].mean():.2%}, mAP {mean:.2%}, linear probe {top1:.2%}")
    print(f"{len(x)} images, {time.process_time():.1f} s of the processor")


if __name__ == "__main__":
    main()
