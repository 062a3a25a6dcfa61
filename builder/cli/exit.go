package cli

import (
	"context"
	"errors"

	"github.com/kairos-io/provider-kubernetes/builder/fetch"
	"github.com/kairos-io/provider-kubernetes/builder/image"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/official"
	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/builder/store"
	"github.com/kairos-io/provider-kubernetes/signing"
)

// Exit codes, as the README documents them.
const (
	ExitOK           = 0 // done, or nothing to do
	ExitUnexpected   = 1
	ExitUsage        = 2 // usage or invalid input
	ExitRefused      = 3 // refused by policy
	ExitStale        = 4 // lock stale, or an input is not what it has to be
	ExitUnreachable  = 5 // a dependency can't be reached; retrying may help
	ExitVerification = 6 // verification failed
	ExitDegraded     = 7 // finished, but degraded
	ExitDeadline     = 8 // deadline exceeded
)

// ExitCode returns the code that an error ends the program with. When errors of
// several kinds come together, what makes the input unacceptable wins over what
// a retry may mend.
func ExitCode(err error) int {
	is := func(target any) bool { return errors.As(err, target) }
	var (
		use          *usageError
		stale        *lock.Stale
		mismatch     *image.InputMismatch
		digest       *store.DigestMismatch
		tool         *image.BadTool
		noChecksum   *official.NoChecksum
		badChecksum  *official.BadChecksum
		nonconform   *image.NotConformant
		rejection    *signing.Rejection
		unreachable  *fetch.Unreachable
		notFound     *fetch.NotFound
		noPlatform   *fetch.NoPlatform
		publishFails *publish.Unreachable
		inspected    *findings
	)
	switch {
	case err == nil:
		return ExitOK
	case is(&use):
		return ExitUsage
	case errors.Is(err, signing.ErrNoRule):
		return ExitRefused
	case is(&rejection) && rejection.Result.Outcome != signing.Unreachable:
		return ExitVerification
	case is(&nonconform), is(&inspected):
		return ExitVerification
	case is(&noChecksum):
		return ExitRefused
	case is(&stale), is(&mismatch), is(&digest), is(&tool), is(&badChecksum), is(&noPlatform), errors.Is(err, errDrift):
		return ExitStale
	case is(&unreachable), is(&notFound), is(&rejection), is(&publishFails):
		return ExitUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		return ExitDeadline
	}
	return ExitUnexpected
}
