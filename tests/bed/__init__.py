"""The test bed: a real Kubernetes control plane with simulated nodes, Pods, metrics and traffic, without root.

`binaries` builds etcd, the Kubernetes components and kwok from their Go modules, once, into a cache; `control_plane`
runs them (class `Bed`); `fleet` answers for the simulated Pods and plays traffic by a scenario; `recorder` and
`invariants` judge every write of the operator. `python -m tests.bed` builds a bed, or keeps one up.
"""
