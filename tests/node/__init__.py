"""A real node: kubelet, containerd and a whole control plane in namespaces of their own. See docs/node.md."""
