# headwise on NVIDIA GPUs. torch brings its CUDA libraries; the machine needs the driver and the NVIDIA container toolkit.
#   docker build -f docker/cuda.Dockerfile -t headwise-cuda .
#   mkdir -p runs          # of the user with id 1000, as which the container runs; otherwise chmod a+w runs
#   docker run --rm --gpus all -v "$PWD/runs:/home/headwise/runs" headwise-cuda score smollm2 ioi --device cuda --out runs/ioi
FROM python:3.11-slim

RUN pip install --no-cache-dir uv==0.13.8 && useradd --create-home --uid 1000 headwise

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY docs docs
RUN uv pip install --system --no-cache --constraint constraints.txt '.[explore]'

USER 1000
WORKDIR /home/headwise
# Weights are kept here; mount a volume to keep them between containers.
ENV HEADWISE_CACHE=/home/headwise/.cache/headwise \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["headwise"]
CMD ["--help"]
