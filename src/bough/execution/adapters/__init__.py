"""bough's executors under the interfaces of other projects."""
