"""How long will the answer be? Output-length distributions learned from finished requests.

Levels 0-3 (prior, all traffic, model, stage and input length) live on the event loop and cost
microseconds; levels 4-5 (similar prompts, repeats) belong to one owner thread with a deadline.
This folder knows numpy, onnxruntime, hnswlib and tokenizers, and nothing of HTTP or engines.
"""

import os

# The arrays here are small: a second BLAS thread would cost a wake-up on the other core and gain
# nothing. It counts only where numpy has not been imported yet, and only if nobody else chose.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
