// Package life holds tests of what comes with time: one thread through thousands of turns and many continue-as-new, deploys in the
// middle of work, and a steady load under which nothing may grow.
package life
