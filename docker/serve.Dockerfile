# A server for an exported ONNX model: slim, without torch, as a user without rights, on a read-only root.
#
#   docker build -f docker/serve.Dockerfile -t vitling-serve .
#   docker run --rm --read-only --cap-drop ALL -p 127.0.0.1:8000:8000 -e VITLING_TOKEN -v "$PWD/model.onnx:/model.onnx:ro" vitling-serve

FROM python:3.12-slim AS build
COPY constraints.txt docker/serve.txt /src/
RUN pip install --no-cache-dir --prefix /install -c /src/constraints.txt -r /src/serve.txt
COPY pyproject.toml README.md LICENSE /src/
COPY vitling /src/vitling
# Without its dependencies: torch and what trains would be gigabytes.
RUN pip install --no-cache-dir --prefix /install --no-deps /src

FROM python:3.12-slim
COPY --from=build /install /usr/local
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["vitling", "serve"]
CMD ["/model.onnx", "--host", "0.0.0.0", "--port", "8000"]
