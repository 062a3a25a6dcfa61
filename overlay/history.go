package overlay

// Shipped is a file that an earlier release put under /etc/systemd/system,
// where Kairos keeps it for ever and where it hides the unit of the image.
type Shipped struct {
	Path   string // relative to /etc/systemd/system
	Size   int64  // bytes
	SHA256 string // lower-case hex
}

// History is everything earlier releases put there. It only ever grows: a node
// may come from any of them.
var History = []Shipped{
	{"containerd.service", 485, "b47a1e62d00497a7363f987f2c2a6ecd8e41778de7cd81696e431f28c4d7bbb5"},
	{"kubelet.service", 599, "3e5647fb9b90d1fbe10fc23e5f17eaa890c27630c910c6ebafc8aa85519fbb52"},
	{"kubelet.service.d/10-kubeadm.conf", 659, "47f61bc9b23acfcb56f35f547a6f0e8bdc2cfb729dfd7dbf1fa49d7534d5aff3"},
	{"provider-kubernetes-image-import.service", 1127, "b9f1aa66fe9ca2653a9a16b691f4a7327a9f885b134833e7d4b136f133e4a15c"},
	{"provider-kubernetes-image-import.service", 1630, "fcf2b3a936107385efb66c8699a2a6417221512d97ea3573a5124aae8dcf5d65"},
}
