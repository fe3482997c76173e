"""Has no `TrainingMicrobatch` unless the test puts one here."""
