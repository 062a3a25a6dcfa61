package cli

import "github.com/kairos-io/provider-kubernetes/runtime/status"

// exitOf returns the exit code that tells a script what a status says: 0 when
// nothing is wrong, 1 unknown or failed, 2 the configuration is invalid, 3
// refused, 7 degraded.
func exitOf(d status.Document) exitCode {
	switch {
	case d.Phase == status.Degraded:
		return 7
	case d.Phase != status.Failed && d.Phase != status.Unknown:
		return 0
	case d.Reason == status.ConfigInvalid || d.Reason == status.ConfigUnreadable:
		return 2
	case d.Reason == status.UpgradeRefused:
		return 3
	}
	return 1
}
