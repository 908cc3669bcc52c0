# Everything that vitling does, training and exporting included, as a user without rights; on the CPU, or on the GPUs that are passed in.
#
#   docker build -f docker/train.Dockerfile -t vitling .
#   docker run --rm --read-only --tmpfs /tmp --shm-size 1g --user "$(id -u):$(id -g)" \
#       -v "$PWD/photos:/data:ro" -v "$PWD/runs:/runs" vitling train /data --out /runs/photos
#
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 takes torch for that CUDA; then run with --gpus all.

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt pyproject.toml README.md LICENSE /src/
COPY vitling /src/vitling
RUN pip install --no-cache-dir -c /src/constraints.txt --extra-index-url "$TORCH_INDEX" "/src[export,serve]" \
    && rm -rf /src
# What libraries keep belongs to no user's home: there is none, and the root may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
WORKDIR /runs
STOPSIGNAL SIGTERM
ENTRYPOINT ["vitling"]
CMD ["--help"]
