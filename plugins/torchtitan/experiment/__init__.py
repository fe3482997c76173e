"""What an elastic run is worth: TorchTitan's stock loader and zephon's, side by side in real training runs.

`python -m experiment.compare` shows losses and resumes of both on several numbers of processes in minutes;
`python -m experiment.series` is the experiment of docs/experiments/elastic.md. Both run in the folder above.
"""
