package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Switch connects nodes. It is a bridge in a network namespace of its own, with
// an address there, and knows nothing of the machine's network. Nothing but an
// open file keeps it, so it goes with the process that made it.
type Switch struct {
	ns      *os.File
	address netip.Prefix
}

// NewSwitch makes a switch whose own address, and the nodes' gateway, is the
// given one, as in 10.77.0.1/24.
func NewSwitch(address netip.Prefix) (*Switch, error) {
	s := &Switch{address: address}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		if s.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"link", "set", "lo", "up"},
			{"link", "add", bridge, "type", "bridge"},
			{"address", "add", address.String(), "dev", bridge},
			{"link", "set", bridge, "up"},
		} {
			if err := tool("ip", nil, args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

const bridge = "br0"

// Network is what a switch may have as address when nothing else matters.
var Network = netip.MustParsePrefix("10.77.0.1/24")

// Listen listens at an address of the switch.
func (s *Switch) Listen(ctx context.Context, address string) (l net.Listener, err error) {
	err = inNetwork(s.ns, func() error {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// Dial connects from the switch to an address of a node. It has the signature
// that an http.Transport wants.
func (s *Switch) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, err // a name would be looked up, and dialed from another thread
	}
	err = inNetwork(s.ns, func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Close ends the use of the switch. It lasts until the last node has ended.
func (s *Switch) Close() error {
	return s.ns.Close()
}

// inNetwork calls f on a thread that is in another network namespace.
func inNetwork(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// onThread calls f on a thread of its own that is not used again.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// plug connects the calling process' network namespace with the switch.
func plug(p plan) error {
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	port := fmt.Sprintf("node-%x", id)
	address, err := netip.ParsePrefix(p.Address)
	if err != nil {
		return err
	}
	// The same at every boot: neighbours remember it.
	a := address.Addr().As4()
	mac := net.HardwareAddr{2, 0, a[0], a[1], a[2], a[3]}
	ns := os.NewFile(switchFD, "switch")
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "eth0", "address", mac.String(), "type", "veth", "peer", "name", port, "netns", "/proc/self/fd/3"},
		{"address", "add", p.Address, "dev", "eth0"},
		{"link", "set", "eth0", "up"},
	} {
		if err := tool("ip", ns, args...); err != nil {
			return err
		}
	}
	err = inNetwork(ns, func() error { return tool("ip", nil, "link", "set", port, "master", bridge, "up") })
	if err != nil {
		return err
	}
	return tool("ip", nil, "route", "add", "default", "via", p.Gateway)
}
