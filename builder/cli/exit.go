package cli

import (
	"context"
	"errors"
	"slices"

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
		policy       *image.BadPolicy
		layers       *image.BadLayers
		malformed    *fetch.Malformed
		nonconform   *image.NotConformant
		rejection    *signing.Rejection
		unreachable  *fetch.Unreachable
		notFound     *fetch.NotFound
		noPlatform   *fetch.NoPlatform
		publishFails *publish.Unreachable
		inspected    *findings
		broken       *damaged
	)
	switch {
	case err == nil:
		return ExitOK
	case is(&use), is(&policy):
		return ExitUsage
	case errors.Is(err, signing.ErrNoRule):
		return ExitRefused
	case disproved(err), is(&nonconform), is(&inspected), is(&broken):
		return ExitVerification
	case is(&noChecksum):
		return ExitRefused
	case is(&stale), is(&mismatch), is(&digest), is(&tool), is(&layers), is(&malformed), is(&badChecksum), is(&noPlatform), errors.Is(err, errDrift):
		return ExitStale
	case is(&unreachable), is(&notFound), is(&rejection), is(&publishFails):
		return ExitUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		return ExitDeadline
	}
	return ExitUnexpected
}

// disproved tells whether one of the signatures in err was read and lets nothing
// in. errors.As would stop at the first, which may be one that can't be read.
func disproved(err error) bool {
	if r, ok := err.(*signing.Rejection); ok { //nolint:errorlint // every error is looked at by itself
		return r.Result.Outcome != signing.Unreachable
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(all.Unwrap(), disproved)
	}
	inner := errors.Unwrap(err)
	return inner != nil && disproved(inner)
}
